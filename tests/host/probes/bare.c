/* A server with a thread, for roots that have a C library and nothing else: tells what its memory has, whether its thread runs, and who it is. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int ticks;

static void *tick(void *unused) {
  struct timespec pause = {0, 1000000};
  for (;;) {
    nanosleep(&pause, NULL);
    __sync_fetch_and_add(&ticks, 1);
  }
  return unused;
}

int main(void) {
  pthread_t thread;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(8080)};
  char *heap = malloc(1 << 20);
  if (!heap || pthread_create(&thread, NULL, tick, NULL) || bind(listener, (void *)&address, sizeof address) || listen(listener, 16))
    return 1;
  strcpy(heap, "heap");
  for (;;) {
    int before = __sync_fetch_and_add(&ticks, 0), connection = accept(listener, NULL, NULL);
    char text[100];
    usleep(20000);
    int length = snprintf(text, sizeof text, "%s %d %d\n", heap, __sync_fetch_and_add(&ticks, 0) > before, (int)getuid());
    if (write(connection, text, length) != length)
      return 1;
    close(connection);
  }
}
