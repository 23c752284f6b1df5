"""The report: one HTML file that tells where streams stand, with charts, and needs nothing else.

`page` puts it together from values, `charts` and `tables` say what is shown of a stream, `chart`
where the lines of a picture go. Nothing is read here, neither the inventory nor a file.
"""
