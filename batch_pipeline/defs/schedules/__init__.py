"""What starts at times: maintenance of all streams, and the look for new files where a stream says
when. A time that is missed does no harm: the next one does what was left.
"""
