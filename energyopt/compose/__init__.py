"""The composition root: the only package that names concrete classes of several folders.

One module a thing that is built: a trial's rig, a study, a service, a diagnosis.
"""
