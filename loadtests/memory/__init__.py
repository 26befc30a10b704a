"""Does the gateway's memory stay flat over a million requests from everybody, for everything, about anything?"""
