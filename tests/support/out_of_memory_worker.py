"""Softmax of rows whose temporary arrays find no memory. Prints what JAX raises, and results after it."""

import resource
import sys

import jax
import jax.numpy as jnp

import jaxkernels as jk

COLS = 1 << 24  # a row of temporary arrays of the compute type takes 64 MiB each
SLACK = 40 << 20  # for XLA's own buffers, without the result


def address_space():
    """Bytes of addresses that this process has taken."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main(rows):
    x = jnp.zeros((rows, COLS), jnp.bfloat16)
    call = jax.jit(lambda x: jk.scaled_masked_softmax(x, scale=2.0)).lower(x).compile()
    call(x).block_until_ready()  # the threads are started
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + x.nbytes + SLACK, unlimited[1]))
    try:
        call(x).block_until_ready()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        print(error)  # one of the two, by how JAX starts the program
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
    assert float(call(x)[0, 0]) == 2.0**-24
    print("right again")


if __name__ == "__main__":
    main(int(sys.argv[1]))
