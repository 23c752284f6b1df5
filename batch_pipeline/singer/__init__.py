"""Singer's language: messages out of published manifests."""
