// A team of threads that run one program together, phase by phase.
//
// All threads run the same function. A phase is a number of pieces of work; whoever is there takes the next piece, and
// the phase is over when every piece is done, not when every thread has come: a thread whose core was taken by another
// process holds up only the piece it was working on. It skips the phases it missed when it runs again. A thread that
// finds no piece left spins briefly, then sleeps, so that a busy machine gets its core.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#define RELAX __builtin_ia32_pause()
#else
#define RELAX std::this_thread::yield()
#endif

// What the threads of one program share. ``ticket`` is the phase's number in its upper half and the next piece in its
// lower; the phase advances by one store, which makes all claims of earlier phases void.
struct Shared {
    alignas(64) std::atomic<uint64_t> ticket{0};
    alignas(64) std::atomic<int> done{0};
    alignas(64) std::atomic<uint32_t> phase{0};  // what sleepers watch
};

class Lane {
public:
    explicit Lane(Shared& shared, int threads) : shared_(shared), threads_(threads) {}

    int threads() const { return threads_; }

    template <typename Work> void phase(int pieces, Work work) {
        if (pieces <= 0) return;
        if (threads_ == 1) {
            for (int piece = 0; piece < pieces; ++piece) work(piece);
            return;
        }
        while (true) {
            uint64_t ticket = held_ ? claim_ : shared_.ticket.fetch_add(1, std::memory_order_acq_rel);
            held_ = false;
            if (uint32_t(ticket >> 32) != mine_) {  // this phase is over; the claim is for a later one
                claim_ = ticket, held_ = true;
                break;
            }
            int piece = int(uint32_t(ticket));
            if (piece >= pieces) {
                wait();
                break;
            }
            work(piece);
            if (shared_.done.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) {
                advance();
                break;
            }
        }
        ++mine_;
    }

private:
    static constexpr int SPINS = 2000;

    void advance() {
        shared_.done.store(0, std::memory_order_relaxed);
        shared_.ticket.store(uint64_t(mine_ + 1) << 32, std::memory_order_release);
        shared_.phase.store(mine_ + 1, std::memory_order_release);
        shared_.phase.notify_all();
    }

    void wait() {
        for (int spin = 0; spin < SPINS; ++spin) {
            if (shared_.phase.load(std::memory_order_acquire) != mine_) return;
            RELAX;
        }
        shared_.phase.wait(mine_, std::memory_order_acquire);
    }

    Shared& shared_;
    const int threads_;
    uint32_t mine_ = 0;
    uint64_t claim_ = 0;
    bool held_ = false;
};

class Team {
public:
    using Program = std::function<void(Lane&)>;

    // Throws system_error where a thread cannot be started; those that were end first.
    explicit Team(int threads) {
        try {
            for (int number = 1; number < threads; ++number) threads_.emplace_back([this, number] { serve(number); });
        } catch (...) {
            end();
            throw;
        }
    }

    ~Team() { end(); }

    int size() const { return int(threads_.size()) + 1; }

    // Runs ``program`` on at most ``threads`` threads and returns when its last phase is over. Threads that fell behind
    // may still be skipping through it then, so it must own, not refer to, what the sizes of its phases depend on.
    void run(int threads, Program program) {
        threads = threads < 1 ? 1 : threads > size() ? size() : threads;
        auto job = std::make_shared<Job>();
        job->program = std::move(program), job->threads = threads;
        if (threads > 1) {
            {
                std::lock_guard guard(mutex_);
                job_ = job, ++generation_;
            }
            wake_.notify_all();
        }
        Lane lane(job->shared, threads);
        job->program(lane);
    }

private:
    struct Job {
        Shared shared;
        Program program;
        int threads = 1;
    };

    void end() {
        {
            std::lock_guard guard(mutex_);
            closing_ = true;
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
    }

    void serve(int number) {
        uint64_t seen = 0;
        while (true) {
            std::shared_ptr<Job> job;
            {
                std::unique_lock guard(mutex_);
                wake_.wait(guard, [&] { return closing_ || generation_ != seen; });
                if (closing_) return;
                seen = generation_, job = job_;
            }
            if (number < job->threads) {
                Lane lane(job->shared, job->threads);
                job->program(lane);
            }
        }
    }

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::shared_ptr<Job> job_;
    uint64_t generation_ = 0;
    bool closing_ = false;
};
