/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An echo server that counts: answers each line with its number, and hands its connection out, with
 * the count, when it is wanted. `program serve` accepts one connection, `program take` takes one,
 * `program signal` waits for a signal.
 */
#include <baton.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 8080

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int serve(baton_link *link, int client, uint32_t count)
{
	baton_registered *registered = baton_register(link, client);
	char byte, answer[16];

	if (!registered)
		fail("baton_register");
	for (;;) {
		struct pollfd wakes[2] = {
			{ .fd = client, .events = POLLIN },
			{ .fd = baton_wake(registered), .events = POLLIN },
		};

		if (baton_is_wanted(registered)) {
			if (!baton_hand_out(registered, client, &count, sizeof(count))) {
				baton_deregister(registered);
				close(client);
				return 0;
			}
			if (errno != ECANCELED)
				fail("baton_hand_out");
			continue;
		}
		if (poll(wakes, 2, -1) < 0)
			fail("poll");
		if (!wakes[0].revents)
			continue;
		if (read(client, &byte, 1) != 1)
			break;
		if (byte != '\n')
			continue;
		snprintf(answer, sizeof(answer), "%u\n", ++count);
		if (write(client, answer, strlen(answer)) < 0)
			fail("write");
	}
	baton_deregister(registered);
	close(client);
	return 0;
}

/* What was forked off leaves its parent's link alone, whatever it does with it. */
static void fork_off(baton_link *link)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		fail("fork");
	if (!child) {
		/* Longer than this takes. */
		alarm(60);
		baton_close(link);
		baton_free(link);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		fail("a child");
}

/* A signal that the program waits for, and blocks in all of its threads that it knows of. */
static int wait_for_signal(void)
{
	struct signalfd_siginfo told;
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, 0);
	if (kill(getpid(), SIGTERM))
		fail("kill");
	return read(fd, &told, sizeof(told)) != sizeof(told);
}

int main(int arguments, char **argument)
{
	uint16_t port = PORT, none = 0;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	baton_link *link;
	int listener, one = 1;

	if (baton_connect(&none, 1) || errno != EINVAL)
		fail("port 0 is refused");
	link = baton_connect(&port, 1);
	if (!link)
		fail("baton_connect");
	if (arguments > 1 && !strcmp(argument[1], "signal"))
		return wait_for_signal();
	if (arguments > 1 && !strcmp(argument[1], "take")) {
		uint32_t count;
		size_t bytes;
		baton_incoming *incoming = baton_accept(link);
		const void *state = baton_state(incoming, &bytes);
		int client;

		if (bytes != sizeof(count))
			fail("the state");
		memcpy(&count, state, sizeof(count));
		client = baton_take(incoming);
		if (client < 0)
			fail("baton_take");
		serve(link, client, count);
	} else {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 1))
			fail("listen");
		while (!baton_is_connected(link))
			sched_yield();
		fork_off(link);
		puts("listening");
		fflush(stdout);
		serve(link, accept(listener, NULL, NULL), 0);
		if (baton_register(link, -1) || errno != EBADF)
			fail("no descriptor is refused");
	}
	baton_close(link);
	if (baton_accept(link))
		fail("closed");
	baton_free(link);
	return 0;
}
