"""The audit of a results folder: replay every episode, rebuild every table, believe none of its figures."""
