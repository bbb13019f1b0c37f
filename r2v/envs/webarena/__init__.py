"""WebArena: 812 tasks on self-hosted sites in a real browser, graded by the official evaluators.

home, install   a child interpreter with BrowserGym's adapter and both graders, whose pins clash with R2V's
addresses       addresses of a site set, from BrowserGym's variables
tasks           the official package's own list
benchmark       tasks and worlds; environment runs in R2V's process, world in the child
judging         the model that judges fuzzy answers
regrading       grading of saved answers again, without sites
check           check of sites, language data and versions
"""
