"""What the user can do: one Action per key, with its help, its condition and what it runs."""
