"""The same rules for what is not Django: a service that proxies and other servers ask."""
