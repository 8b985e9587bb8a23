"""What a turn of the acting master decides with: the node, who is a member, which pops wait."""
