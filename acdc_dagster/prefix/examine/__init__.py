"""What a source holds and what its order is worth, before anything runs: `acdc check`."""
