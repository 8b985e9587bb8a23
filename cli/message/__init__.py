"""`twinlog message`."""
