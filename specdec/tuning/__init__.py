"""What a decode costs on the machine at hand, and the gamma that follows."""
