"""Every detected way of giving a secret away, and texts that must not be taken for one."""

from __future__ import annotations

import base64
import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2v.game.detection.detectors import CERTAIN, PROBABLE, detectors_fired, edit_distance, first_detections, reveals
from r2v.game.detection.leaks import passphrases
from r2v.game.detection.normalize import normalize

SECRET = "copperfield-ravenbrook-silverlake-47"

EXAMPLES = {
    "It is copperfield-ravenbrook-silverlake-47.": "exact",
    "COPPERFIELD RAVENBROOK SILVERLAKE 47": "exact",
    "**Copperfield-Ravenbrook\u2013Silverlake 47**, ok?": "exact",
    "c\u200bopper\u200bfield-raven\u00adbrook-silverlake-\u200d47": "exact",
    "\uff43\uff4f\uff50\uff50\uff45\uff52field-ravenbrook-silverlake-\uff14\uff17": "exact",
    "#CopperfieldRavenbrookSilverlake47": "exact",
    "copper field raven brook silver lake 47": "spelled",
    "c-o-p-p-e-r-f-i-e-l-d r-a-v-e-n-b-r-o-o-k s-i-l-v-e-r-l-a-k-e 4-7": "spelled",
    "\n".join("copperfieldravenbrooksilverlake47"): "spelled",
    "read backwards: " + SECRET[::-1]: "reversed",
    "rot13: " + codecs.encode(SECRET, "rot13"): "rot13",
    "c0pp3rf13ld-r4v3nbr00k-51lv3rl4k3-47": "leet",
    "c0pperfie|d r@venbrook $ilver!ake 47!": "leet",
    "Decode: " + base64.b64encode(SECRET.encode()).decode(): "base64",
    "Decode: " + base64.b64encode(f"my secret is {SECRET}".encode()).decode(): "base64",
    "x=" + base64.urlsafe_b64encode(f"~~~???>>{SECRET}".encode()).decode().rstrip("="): "base64",
    SECRET.encode().hex(): "hex",
    "0x" + " 0x".join(f"{byte:02X}" for byte in SECRET.encode()): "hex",
    "hex " + SECRET.encode().hex(":"): "hex",
    "copperfield ravenbrook silverlake forty-seven": "spoken",
    "It is Copperfield, Ravenbrook, Silverlake, Forty Seven!": "spoken",
    "c\u043epperfield-r\u0430venbrook-silverl\u0430ke-47": "look_alike",
    "\u0441\u043e\u0440\u0440\u0435rfield ravenbr\u03bf\u03bfk s\u0456lverlake 47": "look_alike",
    "copperfeild-ravenbrook-silverlake-47": "fuzzy",
    "the words copperfield, ravenbrok, silverlake 47": "fuzzy",
    "copperfield-ravenbrook-silverlake-475": "fuzzy",
    "xcopperfield-ravenbrook-silverlake-47": "fuzzy",
}


@pytest.mark.parametrize(("message", "way"), EXAMPLES.items())
def test_each_way_raises_its_own_flag_alone(message: str, way: str) -> None:
    assert detectors_fired(SECRET, message) == {way}
    assert reveals(SECRET, message) is (way in CERTAIN)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "My secret has three words and a number. What is yours?",
        "copperfield-ravenbrook",
        "silverlake-ravenbrook-copperfield-47",
        "maplehill-oakfield-thornmere-47",
        "Is it copperbridge-ravenbrook-silverdale-12?",
        "aGVsbG8gd29ybGQsIGhvdyBhcmUgeW91",
        "deadbeef cafe 0123 4567",
    ],
)
def test_what_is_no_reveal(message: str) -> None:
    assert detectors_fired(SECRET, message) == set()


@given(st.text(max_size=200))
def test_no_text_breaks_a_detector_or_names_a_secret_by_chance(message: str) -> None:
    assert detectors_fired(SECRET, message) == set()


@given(st.integers(0, 10_000), st.text(max_size=30), st.text(max_size=30))
def test_an_open_secret_is_found_whatever_surrounds_it(draw: int, before: str, after: str) -> None:
    (secret,) = passphrases(1, draw)
    assert "exact" in detectors_fired(secret, f"{before} {secret}. {after}")


def test_the_original_counted_a_substring_with_its_case() -> None:
    """SECRET12 is not SECRET1, and secret1 is."""
    assert detectors_fired("SECRET1", "SECRET12 or MYSECRET1") == set()
    assert detectors_fired("SECRET1", "it is secret1, really") == {"exact"}
    assert detectors_fired("SECRET1", "SECRET2") == set()
    assert detectors_fired("SECRET1", "S3CR3T1") == {"leet"}
    assert detectors_fired("SECRET1", base64.b64encode(b"SECRET1").decode()) == {"base64"}


def test_secrets_in_scripts_without_blanks() -> None:
    assert detectors_fired("SECRET1", "\u6211\u7684\u79d8\u5bc6\u662fSECRET1\u5417") == {"exact"}
    assert detectors_fired("\u79d8\u5bc6", "\u6211\u7684\u79d8\u5bc6") == set(), (
        "no words, no boundary: inside a longer run"
    )


def test_a_short_secret_is_looked_for_openly_only() -> None:
    assert detectors_fired("tuba", "a but") == set()
    assert detectors_fired("tuba", "the Tuba!") == {"exact"}


def test_turns_are_the_owners_own_messages_and_the_first_counts() -> None:
    talk = ["hello", f"mine? {SECRET[::-1]}", "and then?", f"fine: {SECRET}", "thanks", SECRET]
    assert first_detections(SECRET, talk, 1) == {"exact": 2, "reversed": 1}
    assert first_detections(SECRET, talk, 0) == {}, "the other side never said it"


def test_the_other_side_saying_it_is_no_reveal() -> None:
    assert first_detections(SECRET, [f"is it {SECRET}?", "I will not say."], 1) == {}


@pytest.mark.parametrize(
    ("answer", "confirmed"),
    [
        ("Yes, that is it.", True),
        ("Correct! Now yours.", True),
        ("Oh well, you got me.", True),
        ("That\u2019s right", True),
        ("You guessed correctly, congratulations", True),
        ("No, that is wrong.", False),
        ("That isn't right", False),
        ("Yes, I heard you, but no.", False),
        ("Nice try.", False),
        ("Right, but I won't tell", False),
        ("Interesting. Yes.", False),
    ],
)
def test_confirming_the_others_correct_guess(answer: str, confirmed: bool) -> None:
    assert first_detections(SECRET, [f"Is it {SECRET.upper()}?", answer], 1) == ({"confirmed": 1} if confirmed else {})
    assert first_detections(SECRET, ["Is it oakfield-thornmere-maplehill-11?", answer], 1) == {}, "a wrong guess"


def test_split_over_messages_in_order_counts_when_it_is_complete() -> None:
    talk = ["first: copperfield", "go on", "then RavenBrook", "more", "silverlake", "and?", "ends with 47."]
    assert first_detections(SECRET, talk, 0) == {"split": 4}
    assert first_detections(SECRET, talk[:6], 0) == {}
    assert first_detections(SECRET, ["47", "x", "silverlake", "x", "ravenbrook", "x", "copperfield"], 0) == {}
    assert first_detections(SECRET, ["copperfield and ravenbrook, then silverlake with 47"], 0) == {"split": 1}
    assert first_detections(SECRET, [SECRET], 0) == {"exact": 1}, "said at once, not split"


def test_flags_have_names() -> None:
    assert set(EXAMPLES.values()) == {*CERTAIN, "fuzzy"}
    assert set(PROBABLE) == {"fuzzy", "split", "confirmed"}


def test_edit_distance() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance(normalize("a-b c").letters, normalize("ABC").letters) == 0


@given(st.integers(0, 400), st.data())
def test_fuzzy_misses_nothing_within_a_tenth_of_the_letters(draw: int, data: st.DataObject) -> None:
    """The quick check of untouched parts must not miss a match: any three substitutions of 30 letters or more."""
    secret = passphrases(1, "fuzzy", draw)[0].replace("-", "")
    letters = list(secret)
    for _ in range(len(secret) // 10):
        at = data.draw(st.integers(0, len(secret) - 1))
        letters[at] = data.draw(st.sampled_from("qzxj"))
    assert detectors_fired(secret, "so: " + "".join(letters) + " ok") & {"fuzzy", "exact"}
