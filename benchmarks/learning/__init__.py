"""What ways to aggregate give on data that is not alike."""
