def resolve(device):
    return lambda: device


def backend_of(device):
    raise NotImplementedError
