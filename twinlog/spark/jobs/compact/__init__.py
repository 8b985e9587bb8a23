"""Write a store that keeps the newest record of each key."""
