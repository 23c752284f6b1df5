"""Singer messages of published manifests, a tap and a target."""
