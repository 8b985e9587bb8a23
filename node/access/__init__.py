"""Who asks, and what they may do: logins, rights, changes of both."""
