/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hands live TCP connections, in the middle of a request or response, from one pod's application to
 * another pod's, and takes them (baton-sdk). All functions may be called from any
 * thread; objects are freed by the call that says so, once. A function that fails says so by its
 * result and sets errno.
 */
#ifndef BATON_H
#define BATON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most bytes that an application says of one connection. */
#define BATON_STATE_BYTES_MAX 65536

typedef struct baton_link baton_link;
typedef struct baton_registered baton_registered;
typedef struct baton_incoming baton_incoming;

/*
 * Connects to host-shim, in the background, and again whenever that breaks. `ports`: those that the
 * application listens on. NULL: EINVAL, or no thread can be made. A server that forks connects
 * after the fork, in each child: a child's calls with its parent's link do nothing, and
 * baton_accept() is not for it.
 */
baton_link *baton_connect(const uint16_t *ports, size_t count);
/* 1 while host-shim knows this application, else 0. */
int baton_is_connected(const baton_link *link);
/* Ends baton_accept() on all threads, each of which returns NULL from now on. */
void baton_close(const baton_link *link);
/* No call may use it any more. */
void baton_free(baton_link *link);

/* This connected socket may be wanted from now on. NULL: it is no connected TCP socket. */
baton_registered *baton_register(const baton_link *link, int socket);
/* 1 if another pod shall have it: to be asked between two pieces of work; costs next to nothing. */
int baton_is_wanted(const baton_registered *registered);
/*
 * A descriptor that is readable while it is wanted, for poll(2). Belongs to `registered`. Is to be
 * asked for each time before it is waited for. -1: none can be made.
 */
int baton_wake(const baton_registered *registered);
/*
 * Hands the socket out, with what the next application must know of it, and waits until it has gone
 * or stays, mostly well under a millisecond, as a rule 200 ms at most. Nothing may be read from or
 * written to it meanwhile. 0: it has gone, close the descriptor. -1: it stays, and goes on; EAGAIN:
 * nobody wants it (any more), EMSGSIZE: the state is too long, ECANCELED: the other side did not
 * take it, or host-shim has ended. Only with ECONNRESET does it not go on: host-shim ended in the
 * middle and no other came, close it.
 */
int baton_hand_out(const baton_registered *registered, int socket, const void *state, size_t bytes);
/* Says that it stays. `why`: a sentence for a log, or NULL. */
void baton_stay(const baton_registered *registered, const char *why);
/* It is not wanted any more, and freed. */
void baton_deregister(baton_registered *registered);

/* Waits for a connection that another pod's application hands out. NULL once the link is closed. */
baton_incoming *baton_accept(const baton_link *link);
/* What that application says of it, as long as `incoming` is not freed. */
const void *baton_state(const baton_incoming *incoming, size_t *bytes);
/*
 * Takes it, into a new socket: its descriptor, or -1 if nothing came of it (EMFILE: no descriptor
 * is left). Frees `incoming` in either case.
 */
int baton_take(baton_incoming *incoming);
/* Leaves it where it is, and frees `incoming`. `why`: a sentence for a log, or NULL. */
void baton_refuse(baton_incoming *incoming, const char *why);

#ifdef __cplusplus
}
#endif

#endif
