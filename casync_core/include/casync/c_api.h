#ifndef CASYNC_C_API_H
#define CASYNC_C_API_H

/* How another runtime reaches a session without Python: a table of functions in C11, for glue such as a kernel of
 * TensorFlow, MXNet's engine, a CUDA stream or a c10d Work. docs/glue.md has a complete example.
 *
 * The table is the capsule `casync._core.c_api`. A session is the capsule that `casync.session.Session.c_session()`
 * returns, named CASYNC_SESSION_CAPSULE: whoever has taken the pointer out of it keeps the capsule. To take both takes
 * the GIL; to call takes nothing. Any thread may call anything, with the GIL or without.
 *
 * Errors are returned, never thrown. After the session was shut down everything returns one. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CASYNC_C_API_CAPSULE "casync._core.c_api"
#define CASYNC_SESSION_CAPSULE "casync.Session"
/* Another number: another layout, not to be used with this header. What is added at the end of the table leaves the
 * number as it is; `size` says whether an entry is there. */
#define CASYNC_C_API_VERSION 3

typedef struct casync_session casync_session;

/* The numbers of casync/types.hpp. */
enum casync_kind {
  CASYNC_ALLREDUCE = 0,
  CASYNC_ALLGATHER = 1,
  CASYNC_BROADCAST = 2,
  CASYNC_BARRIER = 3,
  CASYNC_REDUCESCATTER = 4,
  CASYNC_ALLTOALL = 5,
  CASYNC_JOIN = 6
};
enum casync_dtype {
  CASYNC_FLOAT32 = 0,
  CASYNC_FLOAT16 = 1,
  CASYNC_BFLOAT16 = 2,
  CASYNC_FLOAT64 = 3,
  CASYNC_INT8 = 4,
  CASYNC_INT16 = 5,
  CASYNC_INT32 = 6,
  CASYNC_INT64 = 7,
  CASYNC_UINT8 = 8,
  CASYNC_BOOL = 9,
  CASYNC_UINT16 = 10
};
enum casync_reduce_op {
  CASYNC_AVERAGE = 0,
  CASYNC_SUM = 1,
  CASYNC_ADASUM = 2,
  CASYNC_MIN = 3,
  CASYNC_MAX = 4,
  CASYNC_PRODUCT = 5
};

/* What went wrong: 0 for nothing, else one more than the number of an ErrorKind (casync/error.hpp). */
typedef int32_t casync_error;
#define CASYNC_OK 0

/* What will be submitted under a name; alike on all ranks. Texts are copied. */
typedef struct casync_tensor {
  const char* name;
  const char* site;        /* where in the program, for error messages; null: nowhere */
  const char* compression; /* a codec; null: "none" */
  const char* topology;    /* null: "auto" */
  int32_t kind;            /* enum casync_kind */
  int32_t dtype;           /* enum casync_dtype */
  int32_t op;              /* enum casync_reduce_op */
  int32_t root;            /* of a broadcast */
  const int64_t* shape;    /* of an allgather and an alltoall without the first extent, which is each rank's own */
  size_t dimensions;       /* of the shape; 0: a number */
  double prescale;         /* what the caller multiplies its input and the result by, which CaSync does not do: ranks */
  double postscale;        /* must only agree on both. 0 stands for 1 */
  int32_t priority;        /* of tensors that wait, those of a higher one go first */
} casync_tensor;

/* One operation. Memory stays alive, and its input untouched, until the completion is called. */
typedef struct casync_operation {
  uint32_t tensor; /* what `define` gave */
  int32_t more;    /* not 0: another submit follows at once, and this one may wait for it */
  const void* input;
  void* output;          /* may be the input, but for a reducescatter; null for an allgather and an alltoall */
  int64_t rows;          /* of an allgather: this rank's own */
  const int64_t* splits; /* of an alltoall: this rank's rows for each rank; else null */
  size_t ranks;          /* how many splits there are */
} casync_operation;

/* How an operation ended; all of it lives as long as the call. */
typedef struct casync_outcome {
  casync_error error; /* CASYNC_OK: it is done */
  const char* text;   /* of the error; "" if it is done */
  const char* tensor; /* that the error is about; "" if none */
  int64_t peer;       /* the rank to blame; -1: none */
  const void* data;   /* the result of an allgather or an alltoall */
  size_t bytes;
  const int64_t* rows; /* and how many rows of it each rank gave; of a join, one number: the last rank */
  size_t ranks;
} casync_outcome;

/* Called once for each submit that returned CASYNC_OK: after success, failure, an abort or a shutdown, which returns
 * after the last call. It is called by a thread that makes progress, which holds no lock of CaSync, and not the GIL.
 * Name and memory are free: the same tensor may be submitted from here. Nothing may be waited for here, because nothing
 * else may make progress meanwhile. Two completions may run at the same time. After an error that ends the session
 * transfers may still touch the memory, until the session is shut down. */
typedef void (*casync_completion)(void* user, const casync_outcome* outcome);

typedef struct casync_c_api {
  size_t size;      /* of the table, in bytes */
  uint32_t version; /* CASYNC_C_API_VERSION */
  /* Makes a tensor known; the same arguments give the same number. */
  casync_error (*define)(casync_session* session, const casync_tensor* tensor, uint32_t* number);
  /* Submits and returns at once. The completion is not called if this returns an error. */
  casync_error (*submit)(casync_session* session, const casync_operation* operation, casync_completion completion,
                         void* user);
  /* The text of the last error that a call of this thread returned. It lives until the thread's next error. */
  const char* (*error_text)(void);
  /* The session over the process set with this number, 0 for all ranks, so that glue needs no capsule. Null where there
   * is none: before init, after shutdown, for an unknown number, and on a rank that is not in the set. Each one that is
   * held is released, soon: the end of the set waits for it. To hold it again meanwhile is allowed. */
  casync_session* (*hold)(int32_t process_set);
  void (*release)(casync_session* session);
  /* This process's number in the session, and how many ranks it has. */
  int32_t (*rank)(casync_session* session);
  int32_t (*ranks)(casync_session* session);
  /* How the optimizer will use a gradient: see casync.session.Session.set_optimizer. */
  casync_error (*set_optimizer)(casync_session* session, uint32_t tensor, float lr, float momentum, int32_t nesterov,
                                float loss_scale);
} casync_c_api;

#ifdef __cplusplus
}
#endif

#endif
