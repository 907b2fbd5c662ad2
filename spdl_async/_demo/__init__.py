"""The main job as a command: train a small network on a folder of pictures."""
