"""Bytes by URI: files of a disk and objects of a store behind one face, and how they fail.

The one room that speaks to S3. Every failure is an `OSError` whose text says what to do. What the
bytes mean, and whose they are, is not known here.
"""
