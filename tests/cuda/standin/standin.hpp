#pragma once

#include <stddef.h>
#include <stdint.h>

/// What tests tell the stand-in for libcuda (libcuda.cc): it is loaded in the place of CUDA's driver, and has these
/// functions beside the driver's. Any thread.
extern "C" {

/// Where the host reads and writes the bytes of a device: at an address of the device plus this. For the bodies of
/// kernels, which run in the order of a stream; who reads there otherwise waits for the stream first.
int64_t standin_distance(void);
/// Whether so many bytes at an address of a device are part of one allocation that was not freed.
int standin_holds(uint64_t address, size_t bytes);

/// A kernel: `body(argument)` in the order of `stream` (null: the default one), after `milliseconds` of work.
void standin_launch(void* stream, void (*body)(void*), void* argument, int milliseconds);

/// Every copy to the host, or to the device, from now on takes so much longer.
void standin_delay_copies(int to_host_milliseconds, int to_device_milliseconds);
/// Likewise, from memory of a device to such memory.
void standin_delay_copies_between(int milliseconds);

/// The n-th call of the driver's function `name` from now on, the first being 1, returns `result`; 0: none does.
void standin_fail(const char* name, int n, int result);

/// How often a stream of device 0 was told to wait for an event, or to record one, since the last `standin_drop`.
int standin_ordered(void);
/// The n-th time from now on, the first being 1, nothing happens; 0: something always does.
void standin_drop(int n);

/// Every kernel that is launched from now on takes so much longer.
void standin_delay_kernels(int milliseconds);

/// How many kernels were launched by the driver's functions.
int standin_launches(void);
/// And how many asynchronous copies between the host and a device.
int standin_copies(void);

/// How many copies from memory of a device to such memory were queued.
int standin_copies_between(void);

/// The stream is being captured into a graph, or no longer.
void standin_capture(void* stream, int is_captured);

/// From now on every function that could say so returns CUDA_ERROR_ECC_UNCORRECTABLE, and nothing that was queued
/// runs, then or later; 0: it is well again.
void standin_lose_device(int is_lost);

/// Memory of devices, and pinned memory, that was not freed, in bytes.
size_t standin_device_bytes(void);
size_t standin_pinned_bytes(void);

}  // extern "C"
