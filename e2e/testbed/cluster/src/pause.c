/*
 * The only process of a Pod's sandbox: holds its namespaces until it is told to end. Where Pods
 * share their process namespace it is the first process there, so it waits for processes that
 * nobody else waits for.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
  (void)signal;
  _exit(0);
}

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  signal(SIGINT, end);
  signal(SIGTERM, end);
  sigaction(SIGCHLD, &child, 0);
  for (;;) pause();
}
