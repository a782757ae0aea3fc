"""The gateway: a service that decides by the site's rules for proxies and other servers."""
