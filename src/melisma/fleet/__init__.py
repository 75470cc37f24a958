"""What devices are: profiles, links and radio channels, operating states, estimates."""
