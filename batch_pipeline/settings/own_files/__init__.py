"""From a folder of files to a stream for them: listing, choosing, looking inside, proposing.

Nothing is written, and no inventory and no Spark is opened.
"""
