"""The composition root: the only module that names concrete classes of several folders."""
