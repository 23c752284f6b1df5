"""Running Singer targets of others: what they are sent, what they say, and what that is worth."""
