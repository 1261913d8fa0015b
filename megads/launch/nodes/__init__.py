"""What is known of hosts: a check of a suspect, what happened there before, and which hosts are left out."""
