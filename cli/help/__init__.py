"""What twinlog says about itself: help, reference page, version."""
