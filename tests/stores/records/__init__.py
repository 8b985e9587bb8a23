"""Records and sections as clients make them."""
