"""Names, texts and places that somebody might write to make others do what they should not."""
