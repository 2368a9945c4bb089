/* A runtime in C, as another framework's would be: a thread of its own submits through the table, and completions count
 * what they are told. It knows nothing of Python. */
#define _POSIX_C_SOURCE 200809L
#include <casync/c_api.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 64, CHAINED = 8, ELEMENTS = 4, ODD = SLOTS };

typedef struct slot {
  uint32_t tensor;
  float values[ELEMENTS + 2];
  atomic_int again; /* how often its completion submits it again */
  sem_t free;
} slot;

static struct {
  const casync_c_api* api;
  casync_session* session;
  int (*holds_gil)(void);
  int ranks;
  slot slots[SLOTS + 1]; /* the last one has another shape on each rank */
  pthread_t thread;
  atomic_long accepted, refused, called, failed, wrong, with_gil;
} glue;

static void ended(void* user, const casync_outcome* outcome);

static casync_error submit(slot* of, int more) {
  for (int i = 0; i < ELEMENTS; ++i) of->values[i] = 1.0F;
  const casync_operation operation = {
      .tensor = of->tensor, .more = more, .input = of->values, .output = of->values, .rows = 0};
  const casync_error error = glue.api->submit(glue.session, &operation, ended, of);
  atomic_fetch_add(error == CASYNC_OK ? &glue.accepted : &glue.refused, 1);
  if (error != CASYNC_OK && strlen(glue.api->error_text()) == 0) atomic_fetch_add(&glue.wrong, 1);
  return error;
}

static void ended(void* user, const casync_outcome* outcome) {
  slot* const of = user;
  if (glue.holds_gil()) atomic_fetch_add(&glue.with_gil, 1);
  if (outcome->error != CASYNC_OK) {
    atomic_fetch_add(&glue.failed, 1);
    if (strlen(outcome->text) == 0) atomic_fetch_add(&glue.wrong, 1);
  } else if (of->values[0] != (float)glue.ranks || of->values[ELEMENTS - 1] != (float)glue.ranks) {
    atomic_fetch_add(&glue.wrong, 1);
  }
  const int again = atomic_fetch_sub(&of->again, 1) > 0;
  if (!again || submit(of, 0) != CASYNC_OK) sem_post(&of->free);
  atomic_fetch_add(&glue.called, 1);
}

/* Until the session is shut down. */
static void* run(void* unused) {
  (void)unused;
  for (long i = 0; atomic_load(&glue.refused) == 0; ++i) {
    if (i % 1000 == 700) {
      const casync_operation unknown = {.tensor = 12345};
      if (glue.api->submit(glue.session, &unknown, ended, NULL) == CASYNC_OK) atomic_fetch_add(&glue.wrong, 1);
    }
    slot* const of = &glue.slots[i % 1000 == 500 ? ODD : i % SLOTS];
    sem_wait(&of->free);
    atomic_store(&of->again, i % SLOTS < CHAINED ? 2 : 0);
    if (submit(of, i % 8 != 7) != CASYNC_OK) sem_post(&of->free);
  }
  return NULL;
}

int glue_start(const casync_c_api* api, casync_session* session, int (*holds_gil)(void), int rank, int ranks) {
  if (api->version != CASYNC_C_API_VERSION || api->size < sizeof(casync_c_api)) return 1;
  memset(&glue, 0, sizeof glue);
  glue.api = api;
  glue.session = session;
  glue.holds_gil = holds_gil;
  glue.ranks = ranks;
  for (int i = 0; i <= SLOTS; ++i) {
    char name[16];
    snprintf(name, sizeof name, "glue.%d", i);
    const int64_t shape[] = {ELEMENTS + (i == ODD ? rank % 2 : 0)};
    const casync_tensor tensor = {
        .name = name, .site = __FILE__, .dtype = CASYNC_FLOAT32, .op = CASYNC_SUM, .shape = shape, .dimensions = 1};
    if (api->define(session, &tensor, &glue.slots[i].tensor) != CASYNC_OK) return 2;
    sem_init(&glue.slots[i].free, 0, 1);
  }
  return pthread_create(&glue.thread, NULL, run, NULL);
}

/* Waits until so many completions were called; not 0 after `seconds`. */
int glue_wait(long called, double seconds) {
  const struct timespec nap = {.tv_nsec = 1000000};
  for (long left = (long)(seconds * 1e3); left > 0; --left) {
    if (atomic_load(&glue.called) >= called) return 0;
    nanosleep(&nap, NULL);
  }
  return 1;
}

/* After the session was shut down: all that was counted. */
void glue_finish(long counts[6]) {
  pthread_join(glue.thread, NULL);
  atomic_long* const of[] = {&glue.accepted, &glue.refused, &glue.called, &glue.failed, &glue.wrong, &glue.with_gil};
  for (int i = 0; i < 6; ++i) counts[i] = atomic_load(of[i]);
}

/* What a define with this kind and these names says; "" if nothing. */
const char* glue_define(const casync_c_api* api, casync_session* session, const char* name, int kind,
                        const char* compression) {
  uint32_t number = 0;
  const casync_tensor tensor = {.name = name, .kind = kind, .compression = compression};
  return api->define(session, &tensor, &number) == CASYNC_OK ? "" : api->error_text();
}
