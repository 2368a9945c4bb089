#pragma once

#include "casync/c_api.h"
#include "casync/session.hpp"

namespace casync {

/// The table of casync/c_api.h. Any thread.
const casync_c_api& c_api();

/// The session as the table takes it; valid as long as the session is.
inline casync_session* c_session(Session& session) { return reinterpret_cast<casync_session*>(&session); }

}  // namespace casync
