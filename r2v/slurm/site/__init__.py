"""The site: the headers of the scripts, the profile of a cluster, and a new project's folder."""
