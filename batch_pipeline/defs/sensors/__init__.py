"""What looks by itself: for new work and for the ends of runs. A tick that is lost does no harm."""
