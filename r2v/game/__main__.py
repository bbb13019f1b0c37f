"""`python -m r2v.game` plays the Secret Game; with `--compare` models play each other."""

from r2v.game.command import script

if __name__ == "__main__":
    script()
