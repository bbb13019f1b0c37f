"""WebArena: 812 tasks on sites that one hosts oneself, in a real browser, graded by the official evaluators.

home, install   a child interpreter with BrowserGym's adapter and both graders, whose pins clash with R2V's
addresses       where the sites of a set are, by variables as BrowserGym names them
tasks           the official package's own list
benchmark       tasks and worlds; environment, in R2V's process, and world, in the child, play them
judging         the model that fuzzy answers are judged by
regrading       what was saved at collection, graded again without sites
check           whether sites, language data and versions are as they should be
"""
