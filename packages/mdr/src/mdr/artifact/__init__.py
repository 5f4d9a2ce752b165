"""What a file in a repository is: skill, instructions, rule, prompt, agent or command."""
