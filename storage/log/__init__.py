"""The commit log: segments, their batch index, epochs, memory and folders."""
