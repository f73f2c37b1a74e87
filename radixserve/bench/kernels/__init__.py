"""How near are the native kernels to what this machine can do, on a model's own shapes?"""
