#pragma once

/// What tests tell the stand-in for libnccl (libnccl.cc), which has these functions beside NCCL's. It works on the
/// streams and the memory of the stand-in for libcuda. Ranks are processes of a host, or threads of one. Any thread.
extern "C" {

/// The n-th call of NCCL's function `name` by `rank` (negative: by whichever) from now on, the first being 1, returns
/// `result`; 0: none does. "group" is no function: it is what a group does on its stream, and then its communicator has
/// that error.
void standin_nccl_fail(int rank, const char* name, int n, int result);

/// Every group that begins on its stream from now on takes so much longer.
void standin_nccl_delay(int milliseconds);

/// From now on ncclCommAbort does not return, and ends nothing.
void standin_nccl_hang_abort(int does_hang);

/// How many groups this process has launched.
int standin_nccl_groups(void);

/// Communicators of this process that were neither destroyed nor aborted.
int standin_nccl_comms(void);

}  // extern "C"
