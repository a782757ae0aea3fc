"""What holds where Redis cannot be asked: each limit's policy, and this process's share."""
