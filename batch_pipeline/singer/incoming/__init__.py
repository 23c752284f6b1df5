"""What other people's taps and targets say: strict reading of their lines into values."""
