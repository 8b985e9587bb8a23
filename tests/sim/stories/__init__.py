"""Stories of few events in which one rule matters, on simulated machines."""
