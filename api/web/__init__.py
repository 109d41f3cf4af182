"""The page at ``/``: studies, devices and a form, on top of the REST API. No script or style comes from elsewhere."""
